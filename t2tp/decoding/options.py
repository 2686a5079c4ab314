"""Decoding options, parsed from `--decode_hparams`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from t2tp.hparam import HParams
from t2tp.hparam_limits import Limits
from t2tp.mesh.layout import Layout

GREEDY, SAMPLE, BEAM = "greedy", "sample", "beam"
_DEFAULT_BEAM_SIZE = 4
_DEFAULT_EOS_ID = 1
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_LIMITS = {
    **dict.fromkeys(("alpha", "temperature", "top_k", "extra_length", "min_length"), Limits(min=0)),
    "beam_size": Limits(min=1, max=1 << 10),
    "batch_size": Limits(min=1, max=1 << 16),
    "num_samples": Limits(min=-1),
    "top_p": Limits(above=0, max=1),
    "min_p": Limits(min=0, max=1),
}


@dataclass(frozen=True)
class DecodeOptions:
    """How rows are decoded.

    The method is sampling if `temperature`, `top_k`, `top_p` or `min_p` is set, beam search if
    `beam_size` is above 1, and greedy decoding if `beam_size` is 1 or `temperature` is 0. The
    default is beam search of width 4; the command-line programs decode language models greedily by
    default.

    Attributes:
      beam_size: width of beam search; 1: greedy decoding.
      alpha: exponent of the length penalty ((5 + length) / 6) ** alpha, which divides the
        log-probabilities of finished sequences (Y. Wu et al., arXiv:1609.08144, section 7).
      temperature: divides logits before a token is sampled; 0: no sampling.
      top_k: number of most probable tokens to sample from; 0: all tokens.
      top_p: total probability of the smallest set of tokens to sample from (A. Holtzman et al.,
        arXiv:1904.09751); 1: all tokens.
      min_p: probability of a token to sample from, relative to the most probable token, at the
        temperature and at least (M. Nguyen et al., arXiv:2407.01082); 0: all tokens.
      extra_length: a row gets at most this number of new tokens more than it has inputs.
      min_length: min number of new tokens of a row, without EOS.
      return_beams: whether all finished sequences of a row are returned, the best first.
      write_beam_scores: whether programs write each sequence's score.
      num_samples: number of examples or images that programs decode; -1: the whole split.
      batch_size: number of rows decoded together.
      eos_id: token or tokens that end a row; -1: none. Default: the problem's end tokens, or 1.
    """

    beam_size: int | None = None
    alpha: float = 0.6
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    extra_length: int = 100
    min_length: int = 0
    return_beams: bool = False
    write_beam_scores: bool = False
    num_samples: int = -1
    batch_size: int = 16
    eos_id: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a number is out of range, or two options contradict each other."""
        for name, limits in _LIMITS.items():
            limits.check(name, getattr(self, name))
        given = self.eos_id if isinstance(self.eos_id, list | tuple) else [self.eos_id]
        if self.eos_id is not None and not all(isinstance(x, int) and x >= -1 for x in given):
            raise ValueError(f"eos_id is {self.eos_id}, and must be tokens, or -1 for none")
        if self._names_some and self.temperature == 0:
            raise ValueError(
                "top_k, top_p and min_p are about sampling tokens, and temperature=0 is no"
                " sampling: leave it out, or give one above 0"
            )
        if self._samples and (self.beam_size or 1) > 1:
            raise ValueError(
                f"beam_size={self.beam_size} searches, and temperature, top_k, top_p and min_p"
                " sample: give one or the other"
            )
        if self.return_beams and self.method != BEAM:
            raise ValueError(
                f"return_beams gives the sequences of a beam search, and this is {self.method}"
                " decoding: give beam_size above 1 and no temperature, or leave it out"
            )

    @classmethod
    def parse(cls, text: str, **defaults: object) -> DecodeOptions:
        """Parses text such as `beam_size=4,alpha=0.6,extra_length=50`.

        Options that the text does not set have the values `defaults`. If the text selects a
        decoding method, defaults of options for other methods are ignored.

        Raises:
          ValueError: an option is unknown, a value is out of range, or two options contradict.
        """
        declared = HParams()
        for field in fields(cls):
            kind = {"beam_size": int, "temperature": float}.get(field.name)
            declared.add(field.name, field.default, type=kind)
        try:
            given = declared.parse(text)
            searches = "beam_size" in given or given.get("return_beams")
            if searches or given.get("temperature") == 0:
                defaults = {name: x for name, x in defaults.items() if name not in _SAMPLING}
            if given.get("return_beams") or not given.keys().isdisjoint(_SAMPLING):
                defaults.pop("beam_size", None)
            return cls(**{**defaults, **given})
        except ValueError as error:
            raise ValueError(f"decode_hparams: {error}") from error

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a row."""
        if self.eos_id is None:
            return (_DEFAULT_EOS_ID,)
        given = (self.eos_id,) if isinstance(self.eos_id, int) else self.eos_id
        return tuple(token for token in given if token >= 0)

    @property
    def method(self) -> str:
        """The method: `greedy`, `sample` or `beam`."""
        if self._samples:
            return SAMPLE
        return GREEDY if self.width == 1 else BEAM

    @property
    def width(self) -> int:
        """The number of sequences decoded in parallel for each row."""
        if self.beam_size is None:
            return 1 if self._samples or self.temperature == 0 else _DEFAULT_BEAM_SIZE
        return self.beam_size

    @property
    def sampling_temperature(self) -> float:
        """The divisor of logits before sampling."""
        return 1.0 if self.temperature is None else self.temperature

    @property
    def label(self) -> str:
        """The method and its options for names of files, such as `temperature1.top_k5`."""
        if self.method != SAMPLE:
            return GREEDY if self.method == GREEDY else f"beam{self.width}.alpha{self.alpha:g}"
        narrowed = [
            f"{each.name}{value:g}"
            for each in fields(self)
            if each.name in _SAMPLING[1:] and (value := getattr(self, each.name)) != each.default
        ]
        return ".".join([f"temperature{self.sampling_temperature:g}", *narrowed])

    @property
    def _names_some(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def _samples(self) -> bool:
        return bool(self.temperature) or self._names_some


# XLA makes the loop of small decode steps up to twice as fast on one device. It does not compile
# collectives. Compilation takes seconds for each batch shape, so it pays off only for many batches.
# Large models spend their time in matmuls, and XLA's matmuls are slower than TensorFlow's.
_MIN_BATCHES = 8
_MAX_WEIGHTS = 50_000_000


def should_compile(layout: Layout, num_prompts: float, batch_size: int, num_weights: int) -> bool:
    """Whether to compile decoding if the user has not decided.

    `num_prompts` is `math.inf` if unknown; `num_weights` counts the trainable weights.
    """
    is_plain = layout.size == 1 and not layout.exact_sums
    return is_plain and num_prompts >= _MIN_BATCHES * batch_size and num_weights <= _MAX_WEIGHTS
