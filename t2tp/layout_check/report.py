"""The result of comparing a layout with one device."""

from dataclasses import dataclass

# Max difference relative to a tensor's largest value: 1e4 times the rounding error of float64.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Compared:
    """The comparison of a tensor of both programs.

    Attributes:
      kind: `output`, `gradient`, `mask` or `update`.
      name: name of the output, the variable, or the operation.
      shape: dimensions with the axes of the mesh, as in `[batch=8/data, d_ff=16/model]`.
      error: the largest difference in any processor's slice, divided by `scale`.
      scale: the absolute value by which differences are divided.
    """

    kind: str
    name: str
    shape: str
    error: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether the tensors are equal except for rounding; False for NaN."""
        return self.error <= TOLERANCE


@dataclass(frozen=True)
class FirstDifference:
    """The first tensor of the step that differs.

    Attributes:
      operation: the operation that computes it, as in `einsum_3 (EinsumOperation)`.
      inputs: the operation's inputs, which agree.
    """

    tensor: Compared
    operation: str
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        """The finding, as a sentence."""
        computed = f"computed from {', '.join(self.inputs)}" if self.inputs else "without inputs"
        return (
            f"The first tensor that differs is {self.tensor.name} {self.tensor.shape}, by"
            f" {self.tensor.error:.1e}, after the operation {self.operation}, {computed}"
            f"{', which agree' if self.inputs else ''}."
        )


@dataclass(frozen=True)
class LayoutCheck:
    """The result of `check_layout`; `str()` is a table and a sentence.

    Attributes:
      compared: outputs, gradients, masks and updated variables.
      first: first tensor that differs; None if all agree, or if only the update differs.
    """

    layout: str
    compared: tuple[Compared, ...]
    first: FirstDifference | None = None

    @property
    def agrees(self) -> bool:
        """Whether the layout and one device compute the same values."""
        return all(each.agrees for each in self.compared)

    def __str__(self) -> str:
        """Returns the table and the finding."""
        width = max(len(each.name) for each in self.compared)
        lines = [f"{self.layout}, in float64, against one device"]
        lines += [
            f"{each.kind:8}  {each.name:{width}}  {each.error:8.1e}"
            f"  {'' if each.agrees else 'DIFFERS  '}{each.shape}".rstrip()
            for each in self.compared
        ]
        return "\n".join([*lines, self.finding()])

    def finding(self) -> str:
        """Returns the result as sentences."""
        if self.agrees:
            return (
                f"All {len(self.compared)} agree to {TOLERANCE:.0e}: differences in float32 are"
                " rounding."
            )
        wrong = [each for each in self.compared if not each.agrees]
        counted = f"{len(wrong)} of {len(self.compared)} differ by more than {TOLERANCE:.0e}."
        if self.first is not None:
            return f"{counted} {self.first}"
        return (
            f"{counted} Every tensor of the step agrees when all are outputs. Otherwise the first"
            f" that differs is the {wrong[0].kind} {wrong[0].name}. It is computed in a loop, by"
            " the update, or from sums that stay deferred only where no output needs them."
        )
