"""Tables that fit the terminal, or 80 columns of a file: what does not fit follows in another table; no cell is cut."""

from __future__ import annotations

import io
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

#: Between two columns.
_GAP: Final = 2


class Grid:
    """A table of text, printed by rich.

    The first `keys` columns name a row; each part of a wide table repeats them.
    """

    def __init__(self, *columns: str, keys: int = 1, title: str = "", caption: str = "") -> None:
        self._keys = keys
        self.title = title
        self.caption = caption
        self.rows: list[tuple[str, ...]] = [columns]

    def add_row(self, *cells: str) -> None:
        """Add a row with as many cells as there are columns."""
        self.rows.append(cells)

    def __str__(self) -> str:
        """All columns side by side."""
        text = io.StringIO()
        Console(file=text, width=sum(len(cell) + _GAP for row in self.rows for cell in row)).print(self)
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, as many tables as the width asks for, the caption."""
        if self.title:
            yield Text(self.title, style="italic")
        widths = self._widths()
        for columns in self._columns_by_table(widths, options.max_width):
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
            for place in columns:
                is_number = place >= self._keys and all(row[place][:1] in "0123456789.-+" for row in self.rows[1:])
                table.add_column(Text(self.rows[0][place]), no_wrap=True, justify="right" if is_number else "left")
            for row in self.rows[1:]:
                table.add_row(*(Text(row[place]) for place in columns))
            # A name wider than the terminal is not cut either.
            needed = sum(widths[place] for place in columns) - _GAP
            yield from console.render(table, options.update(max_width=max(options.max_width, needed)))
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _widths(self) -> list[int]:
        lines = ([line for cell in cells for line in cell.split("\n")] for cells in zip(*self.rows, strict=True))
        return [max(map(cell_len, each)) + _GAP for each in lines]

    def _columns_by_table(self, widths: list[int], room: int) -> list[list[int]]:
        first = list(range(self._keys))
        tables = [list(first)]
        for place in range(self._keys, len(widths)):
            taken = sum(widths[each] for each in tables[-1]) - _GAP
            if taken + widths[place] > room and len(tables[-1]) > self._keys:
                tables.append(list(first))
            tables[-1].append(place)
        return tables
