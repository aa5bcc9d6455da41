"""Load the 32k tokenizer from the mistral-common package, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, install_command

MISTRAL = "mistral-common"  # name of this tokenizer in options
_FILE = "tokenizer.model.v1"  # 32,000 ids


class MistralTokenizer:
    """Implements the methods of a transformers tokenizer that paceline uses.

    Only datastores and replays use this tokenizer.

    Raises:
        ConfigError: The packages are not installed.
    """

    def __init__(self) -> None:
        try:
            import mistral_common
            from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

            self._inner = SentencePieceTokenizer(
                str(Path(mistral_common.__file__).parent / "data" / _FILE)
            )
        except ImportError as error:
            raise ConfigError(
                f"the tokenizer {MISTRAL!r} needs mistral-common with sentencepiece, which are not"
                f" installed. Install them: {install_command('replay')}."
            ) from error

    def __call__(
        self, texts: str | list[str], *, add_special_tokens: bool = False
    ) -> dict[str, Any]:
        """Tokenise a text or a list of texts.

        Args:
            texts: A text, or a list of texts.
            add_special_tokens: Whether each result begins with the token <s>. Default False.
        Returns:
            {"input_ids": ids}, where `ids` is a list for a single text and a list of lists for
                several texts.
        """
        if isinstance(texts, str):
            return {"input_ids": list(self._inner.encode(texts, bos=add_special_tokens, eos=False))}
        return {
            "input_ids": [
                list(self._inner.encode(text, bos=add_special_tokens, eos=False)) for text in texts
            ]
        }

    def get_vocab(self) -> dict[str, int]:
        """Return the vocabulary, mapping tokens to ids."""
        return {token: number for number, token in enumerate(self._inner.vocab())}
