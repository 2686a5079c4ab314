"""Renders one chat template, as a program with limited memory and time.

Python cannot interrupt one instruction, such as `'a' * 10**9`. So `ChatTemplate` runs this file
in a process that the system limits. The lines of stdin are JSON: the first line is the template,
and each other line has the variables of a rendering. The program answers each line with a line that
has `text` or `error`. A request that takes too long ends the process.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

# Max address space of the process in bytes. Python and Jinja take 40 MiB of it.
_MAX_BYTES = 512 * 2**20
# Max number of characters of a rendered conversation.
_MAX_LENGTH = 16_000_000


def main() -> None:
    """Answers the requests on stdin; the argument is the max processor seconds of a request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent program.
    # Imports must not find the modules next to this file. (Python 3.10 has no option -P.)
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [directory for directory in sys.path if directory != here]
    environment = _environment()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    template: Any = None
    for line in sys.stdin:
        text = ""
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))  # Its signal ends the process.
        try:
            if template is None:
                template = environment.from_string(json.loads(line))
            else:
                text = template.render(json.loads(line))
            if len(text) > _MAX_LENGTH:
                raise OverflowError(
                    f"it writes {len(text):,} characters, more than {_MAX_LENGTH:,}"
                )
            answer = {"text": text}
        except MemoryError:
            answer = {"error": f"it takes more than {_MAX_BYTES // 2**20} MiB of memory"}
        except Exception as error:  # The template is somebody else's program.
            answer = {"error": str(error) or type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


def _environment() -> Any:
    """Returns Jinja's sandbox with the settings and functions of `transformers`."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the model's text; the contents are written unchanged."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            """Returns the block's contents."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes characters for HTML.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return made


if __name__ == "__main__":
    main()
