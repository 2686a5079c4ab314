"""What a program is on its mesh: how each tensor is cut, and what has to be moved for it."""

from t2tp.explanation.reading import Explanation, explain

__all__ = ["Explanation", "explain"]
