"""Messages -> a prompt, by the Jinja template that came with the tokenizer.

A template is a file (`chat_template.jinja`) or a field of `tokenizer_config.json`, which also says
which token ends a message. Templates are untrusted programs: they run in Jinja's sandbox, and for
a limited time, since no thread can be stopped. They find there what `transformers` gives them
(`break` and `continue`, `generation` blocks, `strftime_now`, its own `tojson`, the special tokens
that have a name, also an `image_token`, and `tools` and `documents`, which are None). As there,
special tokens spelled out in the rendered text become special tokens.
"""

import datetime
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dipaco.data.config import EdgeNames, spelled
from dipaco.data.tokenizer import load_tokenizer
from dipaco.errors import needs_extra, one_line
from dipaco.model.huggingface import PLAIN_CHAT
from dipaco.runs.run import Run
from dipaco.serving.errors import BadChatTemplate
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import ChatMessage

if TYPE_CHECKING:
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser

NO_EDGES = EdgeNames()
CHECK = "dipaco_check_time"  # a function that each turn of a loop calls
MOST_SECONDS = 2.0  # processor time for one conversation
MOST_TIMES = 1_000_000  # a text or a number is made no larger by one `*` or `**`
FILES = ("chat_template.jinja", "tokenizer_config.json")  # beside a tokenizer.json, in this order
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def find_template(tokenizer_file: Path) -> Path | None:
    """The template that came with a tokenizer, or None."""
    for name in FILES:
        file = tokenizer_file.with_name(name)
        if file.is_file() and (name != FILES[1] or "chat_template" in _settings(file)):
            return file
    return None


def chat_of_run(run: Run, file: Path | None = None) -> "ChatTemplate":
    """The template in a file, else with the run's tokenizer, else `PLAIN_CHAT`."""
    if file is None and (configured := run.config.data.tokenizer):
        file = find_template(Path(configured))
    return ChatTemplate(file, run.corpus.tokenizer_file, run.corpus.edge_names)


class ChatTemplate:
    """A template, and a tokenizer that parses special tokens.

    Args:
      template_file: Jinja, or a tokenizer_config.json with one. None = `PLAIN_CHAT`.
      tokenizer_file: a tokenizer.json.
      edge_names: what `bos_token` and `eos_token` are in the template, unless a
        tokenizer_config.json beside it says so.

    Raises `BadChatTemplate`: the file is missing, or not a template.
    """

    def __init__(
        self, template_file: Path | None, tokenizer_file: Path, edge_names: EdgeNames = NO_EDGES
    ):
        with needs_extra("serve", package="jinja2", feature="A chat template"):
            import jinja2
            import jinja2.sandbox
        self._file = template_file
        self._tokenizer = load_tokenizer(tokenizer_file)
        self._tokenizer.library.encode_special_tokens = False
        self._special = self._special_tokens(edge_names)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", generation_blocks()],
        )
        environment.filters["tojson"] = _to_json
        environment.intercepted_binops = frozenset({"*", "**"})
        for sign in environment.intercepted_binops:
            operator = environment.binop_table[sign]
            environment.binop_table[sign] = functools.partial(_bounded, operator)
        try:
            tree = environment.parse(self._source())
            for loop in tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro)):
                name = jinja2.nodes.Name(CHECK, "load")
                call = jinja2.nodes.Call(name, [], [], None, None)
                loop.body.insert(0, jinja2.nodes.ExprStmt(call, lineno=loop.lineno))
            tree.set_environment(environment)
            self._template = environment.from_string(tree)
        except BadChatTemplate:
            raise
        except Exception as error:  # Python itself may refuse what Jinja made of it
            raise BadChatTemplate(file=template_file, problem=one_line(error)) from error

    @property
    def stop_ids(self) -> frozenset[int]:
        """The token that ends a message."""
        end = self._special.get("eos_token", "")
        return frozenset({self._tokenizer.library.token_to_id(end)} - {None})

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt, with the beginning of an answer if one is to be added. Raises `ApiError` if
        the template does not accept these messages.
        """
        try:
            text = self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                raise_exception=_raise,
                strftime_now=_strftime_now,
                **{CHECK: _time_check()},
                **self._special,
            )
            text.encode()  # a lone surrogate cannot be encoded
        except Exception as error:  # an untrusted program: it may fail in any way
            why = one_line(error) or type(error).__name__
            problem = f"The chat template does not accept these messages: {why}."
            raise ApiError(400, problem, param="messages") from error
        return text

    def encode(self, text: str) -> np.ndarray:
        """The prompt's ids, int32."""
        (ids,) = self._tokenizer.encode([text])
        return ids

    def _source(self) -> str:
        if self._file is None:
            return PLAIN_CHAT
        if self._file.suffix == ".json":
            source = _settings(self._file).get("chat_template")
            if isinstance(source, list):  # several, of which one is for chats without tools
                named = (each for each in source if isinstance(each, dict))
                source = {each.get("name"): each.get("template") for each in named}
            if isinstance(source, dict):
                source = source.get("default")
            if not isinstance(source, str):
                problem = "it has no `chat_template`, or none of several is named `default`"
                raise BadChatTemplate(file=self._file, problem=problem)
            return source
        try:
            return self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadChatTemplate(file=self._file, problem=one_line(error)) from error

    def _special_tokens(self, edge_names: EdgeNames) -> dict[str, str]:
        """The special tokens by name, as the settings beside the template have them."""
        if self._file is None:
            return {}
        file = self._file.with_name(FILES[1])
        settings = _settings(file) if file.is_file() else {}
        older = file.with_name("special_tokens_map.json")
        if older.is_file() and "added_tokens_decoder" not in settings:
            settings |= _settings(older)
        tokens = {"bos_token": edge_names.start, "eos_token": edge_names.end}
        tokens |= {name: settings[name] for name in SPECIAL if name in settings}
        own = {name: value for name, value in settings.items() if name.endswith("_token")}
        if isinstance(named := settings.get("extra_special_tokens"), dict):
            own |= named
        tokens |= {n: v for n, v in own.items() if n not in SPECIAL and spelled(v) is not None}
        for name, token in tokens.items():
            tokens[name] = spelled(token)
            if token and not isinstance(tokens[name], str):
                raise BadChatTemplate(file=file, problem=f"its `{name}` is not text")
        return {name: token for name, token in tokens.items() if token}


def _settings(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadChatTemplate(file=file, problem=one_line(error)) from error
    if not isinstance(settings, dict):
        raise BadChatTemplate(file=file, problem="it is not a JSON object")
    return settings


def generation_blocks() -> "type[jinja2.ext.Extension]":
    """Jinja's extension for `{% generation %}`, of which only the content counts here."""
    import jinja2.ext
    import jinja2.nodes

    class GenerationBlocks(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    return GenerationBlocks


def _time_check() -> Callable[[], None]:
    """A function for each turn of a loop. It raises once the thread has worked for too long."""
    end = time.thread_time() + MOST_SECONDS

    def check() -> None:
        if time.thread_time() > end:
            raise TimeoutError(f"it takes more than {MOST_SECONDS:g} s")

    return check


def _bounded(operator: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    sizes = [side if isinstance(side, (int, float)) else len(side) for side in (left, right)]
    if abs(sizes[0] * sizes[1]) > MOST_TIMES:
        raise OverflowError(f"it makes something larger than {MOST_TIMES:,}")
    return operator(left, right)


def _strftime_now(how: str) -> str:
    return datetime.datetime.now().strftime(how)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """The filter of `transformers`. Jinja's default escapes characters of HTML."""
    how: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _raise(message: str) -> None:
    raise ValueError(message)


def template_message(message: ChatMessage) -> dict[str, str]:
    """A message as chat templates expect it."""
    role = "system" if message.role == "developer" else message.role
    named = {"name": message.name} if message.name else {}
    return {"role": role, "content": text_of(message), **named}


def routed_text(messages: Iterable[tuple[object, str]], *, is_latest: bool) -> str | None:
    """The text by which a chat is routed. None if the user has written nothing.

    A chat is routed by what the user asked, not by the rendered prompt: the first tokens of that
    are the template's markers and the system prompt, which are alike in all chats.

    Args:
      messages: the role and the text of each.
      is_latest: False: the user's first message, so that the chat stays on its path. True: the
        latest one, so that a change of subject may change the path.
    """
    texts = [text for role, text in messages if role == "user" and text.strip()]
    return texts[-1 if is_latest else 0] if texts else None


def text_of(message: ChatMessage) -> str:
    """The text of a message, its parts joined."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content or ())
