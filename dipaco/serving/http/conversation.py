"""The messages of a chat: what the template gets, and the text that the router reads.

A chat is routed by what the user asked, not by the rendered prompt: the first tokens of that are
the template's markers and the system prompt, which are alike in all chats.
"""

from collections.abc import Sequence

from dipaco.serving.http.protocol import ChatMessage


def template_message(message: ChatMessage) -> dict[str, str]:
    """A message as chat templates expect it."""
    role = "system" if message.role == "developer" else message.role
    named = {"name": message.name} if message.name else {}
    return {"role": role, "content": text_of(message), **named}


def routed_text(messages: Sequence[ChatMessage], *, is_latest: bool) -> str | None:
    """The text by which a chat is routed; None if the user has written nothing.

    Args:
      messages: the conversation so far.
      is_latest: False: the user's first turn, so that later turns stay on its path. True: the
        latest one, so that a change of subject may change the path.
    """
    turns = [text_of(message) for message in messages if message.role == "user"]
    turns = [turn for turn in turns if turn.strip()]
    return turns[-1 if is_latest else 0] if turns else None


def text_of(message: ChatMessage) -> str:
    """The text of a message, its parts joined."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content or ())
