"""Chooses the lengths to which batches of rows are padded."""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence

# Tracing a program takes about as long as computing this many tokens with a small model.
TRACING_TOKENS = 8192

Lengths = tuple[int, ...]


class ProgramShapes:
    """Pads batches to few different lengths, because each combination of lengths needs a program.

    A new program is traced only if tracing costs less than the padding that it saves. Costs are
    counted in tokens, not measured, so all processes make the same choice.
    """

    def __init__(self, rows: int, tracing_tokens: int = TRACING_TOKENS) -> None:
        """Begins without traced programs, for batches of `rows` rows.

        Tracing a program costs `tracing_tokens` tokens. With 0 there is no padding, but a program
        for each batch's lengths.
        """
        self._rows, self._tracing_tokens = rows, tracing_tokens
        self._traced: set[Lengths] = set()

    def batches(self, rows: Sequence[Lengths], count: int) -> Iterator[tuple[list[int], Lengths]]:
        """Yields batches of up to `count` rows: the rows' indices, and the program's lengths."""
        order = sorted(range(len(rows)), key=lambda number: rows[number], reverse=True)
        batches = [order[begin : begin + count] for begin in range(0, len(order), count)]
        longest = [
            tuple(map(max, zip(*(rows[number] for number in numbers), strict=True)))
            for numbers in batches
        ]
        padded = self._padded(longest)
        yield from zip(batches, (padded[each] for each in longest), strict=True)

    def _padded(self, batches: Sequence[Lengths]) -> dict[Lengths, Lengths]:
        """Chooses the program's lengths for each batch's lengths, at the lowest total cost.

        Batches that share a new program are adjacent when sorted by their lengths.
        """
        counts = Counter(batches)
        lengths = sorted(counts)
        # best[n] is the best choice of programs for the n shortest lengths. It has the total cost,
        # and, of the last group of lengths that share a program, the begin and the program.
        best: list[tuple[int, int, Lengths]] = [(0, 0, ())]
        for end in range(1, len(lengths) + 1):
            longest, tokens, choices = lengths[end - 1], 0, []
            for begin in reversed(range(end)):
                longest = tuple(map(max, longest, lengths[begin]))
                tokens += self._rows * counts[lengths[begin]]
                for program in {longest, *self._traced}:
                    if all(map(operator.ge, program, longest)):
                        tracing = 0 if program in self._traced else self._tracing_tokens
                        cost = best[begin][0] + tracing + tokens * sum(program)
                        choices.append((cost, begin, program))
            best.append(min(choices))
        padded: dict[Lengths, Lengths] = {}
        end = len(lengths)
        while end:
            _, begin, program = best[end]
            padded |= dict.fromkeys(lengths[begin:end], program)
            end = begin
        self._traced.update(padded.values())
        return padded
