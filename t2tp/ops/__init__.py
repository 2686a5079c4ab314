"""Operations worth their own lowering: each is one mtf operation with its gradient, correct in
every layout."""

# The door exports some of these operations: it comes first, whichever module is asked for first.
from t2tp import mtf  # noqa: F401
