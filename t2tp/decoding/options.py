"""How symbols are chosen, and how many: what `--decode_hparams` says."""

from __future__ import annotations

from dataclasses import dataclass, fields

from t2tp.hparam import HParams

GREEDY, SAMPLE, BEAM = "greedy", "sample", "beam"
_DEFAULT_BEAM_SIZE = 4

_HELP = {
    "beam_size": "width of beam search; 1: the most probable symbol each time",
    "alpha": "of the length penalty ((5 + length) / 6) ** alpha; 0: none",
    "temperature": "above 0: symbols are drawn, from logits divided by it",
    "top_k": "draw from so many of the most probable symbols; 0: all",
    "top_p": "draw from the fewest most probable symbols that have this probability together",
    "extra_length": "most symbols of a row beyond the length of its inputs or prompt",
    "min_length": "fewest symbols of a row before it may end",
    "return_beams": "give all finished sequences of a row, the best first",
    "write_beam_scores": "write the score beside each sequence",
    "num_samples": "examples of a split, or pictures; -1: all of the split",
    "batch_size": "rows that are decoded together",
    "eos_id": "the symbol that ends a row; -1: none does",
}


@dataclass(frozen=True)
class DecodeOptions:
    """How rows are decoded.

    Drawing (`temperature`, `top_k` or `top_p` is given), beam search (`beam_size` above 1) and
    greedy decoding exclude each other. Without any of these it is beam search of width 4.

    Attributes:
      beam_size: width of beam search; 1: greedy.
      alpha: of the length penalty ((5 + length) / 6) ** alpha (Y. Wu et al., arXiv:1609.08144,
        section 7), by which the log-probabilities of finished sequences are divided.
      temperature: divides logits before one is drawn; 0: none is drawn.
      top_k: draw from so many of the most probable symbols; 0: all.
      top_p: draw from the fewest of the most probable symbols whose probabilities add up to this
        (A. Holtzman et al., arXiv:1904.09751); 1: all.
      extra_length: most symbols of a row beyond the length of its inputs, or of a prompt.
      min_length: fewest symbols that a row has, its prompt and its end not counted.
      return_beams: whether all finished sequences of a row are given, the best first.
      write_beam_scores: whether programs write the score beside each sequence.
      num_samples: how many examples of a split programs decode, or how many pictures; -1: all of
        the split.
      batch_size: rows that are decoded together.
      eos_id: the symbol that ends a row; -1: none does.
    """

    beam_size: int | None = None
    alpha: float = 0.6
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    extra_length: int = 100
    min_length: int = 0
    return_beams: bool = False
    write_beam_scores: bool = False
    num_samples: int = -1
    batch_size: int = 16
    eos_id: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be meant.

        Raises:
          ValueError: a number is out of its range, or two options contradict each other.
        """
        at_least = {"alpha": 0, "temperature": 0, "top_k": 0, "extra_length": 0, "min_length": 0}
        for name, least in {
            **at_least,
            "beam_size": 1,
            "batch_size": 1,
            "eos_id": -1,
            "num_samples": -1,
        }.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, and must be at least {least}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, and must be above 0 and at most 1")
        if self._names_some and self.temperature == 0:
            raise ValueError(
                "top_k and top_p are about drawing symbols, and temperature=0 draws none: leave it"
                " out, or give one above 0"
            )
        if self._draws and (self.beam_size or 1) > 1:
            raise ValueError(
                f"beam_size={self.beam_size} searches, and temperature, top_k and top_p draw: give"
                " one or the other"
            )
        if self.return_beams and self.method != BEAM:
            raise ValueError(
                f"return_beams gives the sequences of a beam search, and this is {self.method}"
                " decoding: give beam_size above 1 and no temperature, or leave it out"
            )

    @classmethod
    def parse(cls, text: str, **defaults: object) -> DecodeOptions:
        """Reads text such as `beam_size=4,alpha=0.6,extra_length=50`.

        Args:
          text: options.
          **defaults: of options that the text does not name, where they are not the usual ones.

        Raises:
          ValueError: there is no such option, or a value cannot be.
        """
        declared = HParams()
        for field in fields(cls):
            kind = {"beam_size": int, "temperature": float}.get(field.name)
            declared.add(field.name, field.default, _HELP[field.name], type=kind)
        try:
            return cls(**{**defaults, **declared.parse(text)})
        except ValueError as error:
            raise ValueError(f"decode_hparams: {error}") from error

    @property
    def method(self) -> str:
        """`greedy`, `sample` or `beam`."""
        if self._draws:
            return SAMPLE
        return GREEDY if self.width == 1 else BEAM

    @property
    def width(self) -> int:
        """How many sequences of a row are followed at the same time."""
        if self.beam_size is None:
            return 1 if self._draws or self.temperature == 0 else _DEFAULT_BEAM_SIZE
        return self.beam_size

    @property
    def drawing_temperature(self) -> float:
        """What logits are divided by before one is drawn."""
        return 1.0 if self.temperature is None else self.temperature

    @property
    def _names_some(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    @property
    def _draws(self) -> bool:
        return bool(self.temperature) or self._names_some
