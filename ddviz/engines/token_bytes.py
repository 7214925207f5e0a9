"""From a token id to its raw bytes, for any tokenizer of transformers.

Traces carry these, so that no reader needs a tokenizer. Not here: how bytes are shown (trace/tokens.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_bytes_function(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """From a token id to its raw bytes, for byte-level and SentencePiece-like vocabularies."""
    special = {token: added.content for token, added in tokenizer.added_tokens_decoder.items()}
    byte_level = _is_byte_level(tokenizer)
    byte_of = _byte_level_alphabet()

    def token_bytes(token: int) -> bytes:
        if token in special:
            return special[token].encode()
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # ids beyond the tokenizer, where the model's vocabulary is padded
            return f"⟨{token}⟩".encode()
        if byte_level:
            return bytes(byte_of[c] for c in piece) if all(c in byte_of for c in piece) else piece.encode()
        if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    return token_bytes


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in json.dumps(json.loads(backend.to_str()).get("decoder"))


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + offset): byte for offset, byte in enumerate(others)}
