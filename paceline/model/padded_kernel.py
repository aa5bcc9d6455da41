"""Fill the arrays and the mask of a padded batch in compiled code."""

from __future__ import annotations

from paceline.core.tree import BoolArray, IntArray
from paceline.util.compiled import compiled, inlined


@compiled
def arrange_rows(
    counts: IntArray,
    numbers: IntArray,
    front: int,
    columns: IntArray,
    padding: BoolArray,
    block: BoolArray,
) -> None:
    """Fill the arrays of a `PaddedBatch`.

    Each row consists of padding, pending tokens, nodes and more padding. In every row, the newest
    pending token (the root) is in column `front` - 1, and the first node is in column `front`.

    Args:
        counts: [4, rows]. For each row, the numbers of cached tokens, pending tokens and nodes,
            and the token that fills its padding.
        numbers: Token ids and parents of all rows, one row after another. For each row, the pending
            tokens come first, then the tokens of the nodes, then the parents of the nodes.
        front: Number of columns before the nodes.
        columns: Output: token ids, text positions and cache positions, [3, rows, columns].
        padding: Output: `PaddedBatch.padding`, [rows, columns].
        block: Output: `PaddedBatch.block`, initially False, [rows, columns, columns].
    """
    width = columns.shape[2]
    start = 0  # of the row's numbers
    for row in range(counts.shape[1]):
        cached, pending, nodes, filler = counts[:, row]
        first, stop = front - pending, front + nodes
        parents = start + pending + nodes
        for column in range(width):
            is_padding = column < first or column >= stop
            padding[row, column] = is_padding
            columns[2, row, column] = cached + (column - first) % width
            if is_padding:
                columns[0, row, column], columns[1, row, column] = filler, 0
                block[row, column, front - 1] = True
                continue
            columns[0, row, column] = numbers[start + column - first]
            if column < front:
                columns[1, row, column] = cached + column - first
                block[row, column, first : column + 1] = True
                continue
            above = front + numbers[parents + column - front]  # column of the parent
            is_child = above < front  # of the root
            columns[1, row, column] = 1 + columns[1, row, front - 1 if is_child else above]
            block[row, column, first:front] = True
            if not is_child:
                block[row, column, front : above + 1] = block[row, above, front : above + 1]
            block[row, column, column] = True
        start = parents + nodes


@compiled
def fill_visible(
    mask: BoolArray,
    cached: IntArray,
    columns: tuple[IntArray, IntArray, BoolArray],
    block: BoolArray,
    window: int,
    chunk: int,
) -> None:
    """Fill a mask with the cache positions that each column sees.

    Args:
        mask: Output, initially False, [rows, columns, cache positions].
        cached: Number of tokens in the cache, [rows].
        columns: Text position and cache position of each column, and whether the column is padding,
            each [rows, columns].
        block: `PaddedBatch.block`, [rows, columns, columns].
        window: Size of the attention window (`Reach.window`); 0 means no window.
        chunk: Size of the attention chunks (`Reach.chunk`); 0 means no chunks.
    """
    positions, cache_positions, padding = columns
    width = positions.shape[1]
    for row in range(len(cached)):
        length = cached[row]
        # In the cache, the columns from `turn` on come first, followed by the columns before it.
        turn = (length - cache_positions[row, 0]) % width
        for query in range(width):
            seen = mask[row, query]
            seen[:length] = True
            _copy(block[row, query, turn:], seen[length:])
            _copy(block[row, query, :turn], seen[length + width - turn :])
            if padding[row, query] or not (window or chunk):
                continue
            position = positions[row, query]
            for key in range(length + width):
                text = key
                if key >= length:
                    text = positions[row, (key - length + turn) % width]
                if window:
                    seen[key] &= text > position - window
                else:
                    seen[key] &= text // chunk == position // chunk


@inlined
def _copy(source: BoolArray, target: BoolArray) -> None:
    for index in range(len(source)):
        target[index] = source[index]
