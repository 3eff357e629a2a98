"""Tables that fit the terminal, or 80 columns of a file: what does not fit follows in another table; no cell is cut."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

#: A width that no table has.
_UNLIMITED: Final = 10_000


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
        Console(file=text, width=_UNLIMITED).print(self)
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, as many tables as the width asks for, the caption."""
        if self.title:
            yield Text(self.title, style="italic")
        columns = list(range(self._keys, len(self.rows[0])))
        is_first = True
        while columns or is_first:
            for number in range(max(1, len(columns)), 0, -1):
                table = self._table([*range(self._keys), *columns[:number]])
                needed = Measurement.get(
                    console, options.update(max_width=_UNLIMITED), table
                ).maximum
                if needed <= options.max_width:
                    break
            # A name wider than the terminal is not cut either.
            yield from console.render(
                table, options.update(max_width=max(options.max_width, needed))
            )
            columns, is_first = columns[number:], False
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _table(self, columns: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place in columns:
            is_number = place >= self._keys and all(
                row[place][:1] in "0123456789.-+" for row in self.rows[1:]
            )
            table.add_column(
                Text(self.rows[0][place]), no_wrap=True, justify="right" if is_number else "left"
            )
        for row in self.rows[1:]:
            table.add_row(*(Text(row[place]) for place in columns))
        return table
