"""The number of segments in a row, for which programs on GPUs are compiled.

cuDNN's attention kernels support packed rows, but the largest number of segments in a row is part
of the compiled program. The host counts the segments of a batch before it starts the step, and
chooses the program. A condition on the device instead would make the host wait for the device.
"""

from collections.abc import Iterable

import numpy as np

from t2tp import upstream
from t2tp.lowering.lowering import all_operations
from t2tp.lowering.operation import hooks

# More segments would make the kernels slower than with a bias: their memory grows with the number.
MOST_SEGMENTS = 16


def segment_features(operations: Iterable[upstream.Operation]) -> list[str]:
    """Returns the names of the features that have the segments of attention's rows.

    The list is empty if the step computes segments: their number is unknown then.
    """
    names = set()
    for op in all_operations(operations):
        source = hooks(op).segments
        if source is None:
            continue
        while hooks(source.operation).is_feature and source.operation.inputs:
            source = source.operation.inputs[0]  # It is a microbatch's rows of a feature.
        if not hooks(source.operation).is_feature:
            return []
        names.add(source.operation.name)
    return sorted(names)


def segments_of_rows(features: Iterable[np.ndarray]) -> int:
    """Returns a bound of the number of segments of a row in features [..., length].

    The bound is a power of two, so that few programs are compiled. It is 0, for unknown, if there
    are no features, if a row has more than `MOST_SEGMENTS`, or if a number occurs again after
    another one (positions of both parts attend to each other).
    """
    largest = 0
    for rows in features:
        runs = 1 + np.count_nonzero(np.diff(rows), -1)
        numbers = 1 + np.count_nonzero(np.diff(np.sort(rows)), -1)
        if np.any(runs != numbers) or np.max(runs) > MOST_SEGMENTS:
            return 0
        largest = max(largest, int(np.max(runs)))
    return largest and 1 << (largest - 1).bit_length()
