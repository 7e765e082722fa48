"""Tokens of PTX text, and the parsers' cursor over them.

A word includes its dots and double colons (`ld.global.L2::128B.b32`, `%tid.x`). So an opcode with
its modifiers is one token, and a directive is a word with a leading dot.

Invariant: tokens are in text order and cover all text but comments and white space.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Literal, NamedTuple, TypeAlias, cast

from aotc.verify.emulator.errors import EmulationError

TokenKind: TypeAlias = Literal["word", "number", "string", "mark", "end"]

_TOKEN = re.compile(
    r"""
    (?P<skip>   \s+ | //[^\n]* | /\*.*?\*/ )
  | (?P<word>   [.%]? [A-Za-z_$] [\w$]* (?: ::\w+ )* (?: \.[\w$]+ (?: ::\w+ )* )* )
  | (?P<number> 0[fF][0-9a-fA-F]{8} | 0[dD][0-9a-fA-F]{16} | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
              | \d+\.\d* (?: [eE][+-]?\d+ )? | \d+U? )
  | (?P<string> "(?: [^"\\] | \\. )*" )
  | (?P<mark>   [{}()\[\],;:@!<>=+|-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_FLOAT = re.compile(r"0[fFdD]|.*\.")


class Token(NamedTuple):
    """Hold one token; `start` and `end` are positions in the text."""

    kind: TokenKind
    text: str
    start: int
    end: int


class Cursor:
    """Step through the tokens of a text.

    Raises: EmulationError at a character outside any token.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._line_starts = [0, *(newline.end() for newline in re.finditer("\n", text))]
        self.tokens = self._tokenize()
        self.position = 0

    def _tokenize(self) -> list[Token]:
        tokens: list[Token] = []
        position = 0
        for match in _TOKEN.finditer(self.text):
            if match.start() != position:
                break
            position = match.end()
            if match.lastgroup != "skip":
                kind = cast("TokenKind", match.lastgroup)
                tokens.append(Token(kind, match[0], match.start(), position))
        end = Token("end", "the end of the file", position, position)
        if position != len(self.text):
            raise self.error(f"no PTX begins with {self.text[position]!r}", end)
        return [*tokens, end]

    def line_of(self, token: Token) -> int:
        """Return the line of a token, counted from 1."""
        return bisect_right(self._line_starts, token.start)

    def error(self, message: str, token: Token | None = None) -> EmulationError:
        """Return the error for a token, or for the next one."""
        line = self.line_of(token or self.tokens[self.position])
        start = self._line_starts[line - 1]
        return EmulationError(message, line=line, text=self.text[start:].split("\n", 1)[0].strip())

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def peek(self, ahead: int = 0) -> str:
        """Return the text of the next token, or of the `ahead`-th after it."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)].text

    def next(self) -> Token:
        """Consume and return the next token."""
        token = self.tokens[self.position]
        if token.kind == "end":
            raise self.error("the text ends too early: it is truncated", token)
        self.position += 1
        return token

    def take(self, text: str) -> bool:
        """Consume the next token if it is `text`; return whether it was."""
        if self.tokens[self.position].text != text:
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        """Consume the next token, which must be `text`."""
        token = self.next()
        if token.text != text:
            raise self.error(f"expected {text!r}, got {token.text!r}", token)

    def skip_past(self, text: str) -> None:
        """Consume all tokens up to and including `text`."""
        while self.next().text != text:
            pass

    def word(self, expected: str) -> str:
        """Consume and return a word, named `expected` in errors."""
        token = self.next()
        if token.kind != "word":
            raise self.error(f"expected {expected}, got {token.text!r}", token)
        return token.text

    def integer(self, expected: str) -> int:
        """Consume and return an integer, named `expected` in errors."""
        sign = 1
        if self.peek() in ("-", "+"):
            sign = -1 if self.next().text == "-" else 1
        token = self.next()
        if token.kind != "number" or _FLOAT.match(token.text):
            raise self.error(f"expected {expected}, got {token.text!r}", token)
        return sign * int(token.text.rstrip("U"), 0)
