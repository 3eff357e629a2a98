"""Tables that fit the terminal, or 80 columns of a file; further columns follow below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

#: A width in characters that no table reaches.
_UNLIMITED: Final = 10_000


class Grid:
    """A table of text, printed by rich; a wide one is split into several, one below the other.

    The first `keys` columns name a row; each part of a wide table repeats them.
    """

    def __init__(self, *columns: str, keys: int = 1, title: str = "", caption: str = "") -> None:
        """Make a table with heads of columns; title and caption are lines above and below it."""
        self._keys = keys
        self.title = title
        self.caption = caption
        self.rows: list[tuple[str, ...]] = [columns]
        """The heads of the columns, then the cells of each row."""

    def add_row(self, *cells: str) -> None:
        """Add a row with as many cells as there are columns."""
        self.rows.append(cells)

    def __str__(self) -> str:
        """Return the table as text, with all columns side by side."""
        text = io.StringIO()
        Console(file=text, width=_UNLIMITED).print(self)
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what rich prints: the title, as many tables as the width needs, the caption.

        Each table takes as many of the remaining columns as fit; a table without columns but keys
        is printed too.
        """
        if self.title:
            yield Text(self.title, style="italic")
        key_columns = list(range(self._keys))
        columns = list(range(self._keys, len(self.rows[0])))
        is_first = True
        while columns or is_first:
            num_columns = self._num_fitting_columns(console, options, columns)
            table = self._table([*key_columns, *columns[:num_columns]])
            # A table that is wider than the terminal even so is printed whole, not cut.
            width = max(options.max_width, _width(table, console, options))
            yield from console.render(table, options.update(max_width=width))
            columns = columns[num_columns:]
            is_first = False
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def _num_fitting_columns(
        self, console: Console, options: ConsoleOptions, columns: Sequence[int]
    ) -> int:
        """Return how many of the columns fit beside the key columns; at least 1."""
        for num_columns in range(len(columns), 1, -1):
            table = self._table([*range(self._keys), *columns[:num_columns]])
            if _width(table, console, options) <= options.max_width:
                return num_columns
        return 1

    def _table(self, columns: Sequence[int]) -> Table:
        """Make a table of the columns of some indices; numbers are aligned to the right."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        heads, *rows = self.rows
        for column in columns:
            cells = [row[column] for row in rows]
            # `-` is also the cell of what is not known.
            has_numbers = all(cell[:1] in "0123456789.-+" for cell in cells)
            is_numeric = column >= self._keys and has_numbers
            table.add_column(
                Text(heads[column]), no_wrap=True, justify="right" if is_numeric else "left"
            )
        for row in rows:
            table.add_row(*[Text(row[column]) for column in columns])
        return table


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    """Return the width in characters that a table takes where there is room."""
    unlimited = options.update(max_width=_UNLIMITED)
    return Measurement.get(console, unlimited, table).maximum
