"""From tokenized documents to sequences of at most seq_length tokens.

A document is framed first: what its tokenizer and the task put before and after it (a BOS, exactly one EOS; for a
masked model [CLS] and [SEP]). Framed documents are put end to end and cut into sequences; a document that does not
fit goes on in the next sequence. Without packing each document has sequences of its own: one, or several if it is
longer.

Nothing here knows lanes or files: a `SequenceBuilder` is filled with parts of documents until it is full, or until
there are none left (then its sequence is shorter, and the task pads it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Sequence:
    """One training sequence. Padding is not in it: it is known by the length, never by a token.

    Attributes:
        input_ids: (length,), length at most seq_length.
        document_lengths: tokens of each document in order; their sum is the length.
        key: (seed, epoch, lane, index), from which a task draws whatever is random.
        continues: whether the first document goes on from an earlier sequence.
    """

    input_ids: TokenArray
    document_lengths: tuple[int, ...]
    key: tuple[int, ...]
    continues: bool = False


@dataclass(frozen=True)
class DocumentFraming:
    """The tokens round a document. `each_part` frames every part of a document that is cut without packing (BERT's
    windows all begin with [CLS]); otherwise the framed document is cut as it is."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    each_part: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that framing adds."""
        return len(self.prefix) + len(self.suffix)

    def frame(self, tokens: TokenArray) -> TokenArray:
        """The tokens with those before and after them; (n + num_tokens,)."""
        # "unsafe": an empty tuple is an array of floats to NumPy.
        return np.concatenate([self.prefix, tokens, self.suffix], dtype=np.int32, casting="unsafe")


@dataclass(frozen=True)
class Cutter:
    """Takes parts of documents, in tokens of the document as `prepare` returns it."""

    framing: DocumentFraming
    is_packing: bool

    def prepare(self, tokens: TokenArray) -> TokenArray:
        """A tokenized document ready to be cut."""
        return tokens if self._frames_parts else self.framing.frame(tokens)

    def cut(self, document: TokenArray, used: int, room: int) -> tuple[TokenArray, int]:
        """The next part, at most `room` tokens, of a prepared document of which `used` tokens are used already.

        Returns the part and how many tokens of the document are used then.
        """
        if not self._frames_parts:
            end = min(used + room, len(document))
            return document[used:end], end
        assert room > self.framing.num_tokens, "data.seq_length leaves no room between the special tokens"
        end = min(used + room - self.framing.num_tokens, len(document))
        return self.framing.frame(document[used:end]), end

    @property
    def _frames_parts(self) -> bool:
        return self.framing.each_part and not self.is_packing


class SequenceBuilder:
    """A sequence in the making."""

    def __init__(self, seq_length: int, *, is_packing: bool) -> None:
        self._seq_length = seq_length
        self._is_packing = is_packing
        self._parts: list[TokenArray] = []
        self._continues = False
        self._length = 0

    @property
    def room(self) -> int:
        """Tokens that still fit; none after the first part where documents are not packed."""
        return 0 if self._parts and not self._is_packing else self._seq_length - self._length

    def add(self, part: TokenArray, *, continues: bool) -> None:
        """Append the part of a document; `continues` where it is not the document's first."""
        assert 0 < len(part) <= self.room, "a part that does not fit"
        if not self._parts:
            self._continues = continues
        self._parts.append(part)
        self._length += len(part)

    def build(self, key: tuple[int, ...]) -> Sequence | None:
        """The sequence; None where nothing was added."""
        if not self._parts:
            return None
        lengths = tuple(len(part) for part in self._parts)
        return Sequence(np.concatenate(self._parts), lengths, key, self._continues)
