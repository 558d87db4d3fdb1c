"""Load, check, train and write vocabularies.

The only importer of `tokenizers`, which has its own threads (TOKENIZERS_PARALLELISM=false turns
them off).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jaxtie.config import UserError
from jaxtie.text.data.batches import Special
from jaxtie.text.data.cache import in_one_line

WAY_OF_TRAINING = 2  # version of how vocabularies are trained, part of their cache keys
ALPHABET = 1000  # characters, at most
# [PAD], [UNK], [CLS], [SEP], [MASK]
SPECIAL_TOKENS = tuple(f"[{name.upper()}]" for name in Special._fields)
END = "<|endoftext|>"
ADDED = "<end of document>"  # the last entry, where a vocabulary has none
# What published vocabularies call the special tokens; the first one that is there counts.
SPECIAL_NAMES = {
    "pad": "[PAD] <pad> <|pad|> <|padding|> <|finetune_right_pad_id|>",
    "unk": "[UNK] <unk> <|unk|>",
    "cls": "[CLS] <s> <bos> <|begin_of_text|> <|startoftext|> <|bos|> <｜begin▁of▁sentence｜>",
    "sep": f"[SEP] {END} </s> <eos> <|end_of_text|> <|eos|> <｜end▁of▁sentence｜>",
    "mask": "[MASK] <mask> <|mask|>",
}


class Vocabulary(NamedTuple):
    """A tokenizer, its tokens in the order of their ids, and its file."""

    tokenizer: Tokenizer
    tokens: tuple[str, ...]
    special: Special
    content: bytes

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, without special ones around them."""
        try:
            found = self.tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
        except Exception as error:  # an unknown character, and no token for it
            reason = in_one_line(error)
            raise UserError(f"vocabulary: cannot tokenise this text ({reason})") from error
        return [each.ids for each in found]


def wrap_as_bert(model: models.WordPiece) -> Tokenizer:
    """Make BERT's uncased tokenizer of a model; text that looks like a special token is text."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_vocabulary(path: Path) -> Vocabulary:
    """Load the vocabulary of a file; raise UserError as `parse_vocabulary` or if unreadable."""
    try:
        return parse_vocabulary(path.read_bytes(), f"--vocab {path}")
    except OSError as error:
        raise UserError(f"--vocab {path}: cannot be read ({error.strerror})") from error


def name_of(content: bytes) -> str:
    """Return the name of a vocabulary's file by its content."""
    return "tokenizer.json" if content.startswith(b"{") else "vocab.txt"


def parse_vocabulary(content: bytes, name: str) -> Vocabulary:
    """Load a vocabulary from a `tokenizer.json`, or from a `vocab.txt` with an entry a line.

    The name of the file decides its format, and errors begin with it. Special tokens are those with
    one of `SPECIAL_NAMES`. A vocabulary in which none ends a document gets one more entry for that.

    Raises:
      UserError: if it is no vocabulary, or cannot encode unknown words.
    """
    tokenizer = _parse_tokenizer(content, name)
    try:
        tokenizer.encode("x" * 1000, add_special_tokens=False)  # too long for WordPiece
    except Exception as error:  # its token for unknown words may be missing
        reason = in_one_line(error)
        raise UserError(f"{name}: cannot tokenise an unknown word ({reason})") from error
    token_of = {i: token for token, i in tokenizer.get_vocab().items()}
    if not token_of:
        raise UserError(f"{name}: has no entries")
    if not name.endswith(".json") and max(token_of) >= len(token_of):
        raise UserError(f"{name}: an entry comes twice")
    tokens = [token_of.get(i, f"<no token {i}>") for i in range(max(token_of) + 1)]
    added = tokenizer.get_added_tokens_decoder().items()  # WordPiece of a `vocab.txt` has none
    known = {each.content: i for i, each in added if each.special} or tokenizer.get_vocab()
    found = {
        name: next((known[each] for each in own.split() if each in known), -1)
        for name, own in SPECIAL_NAMES.items()
    }
    special = Special(**found)
    if special.sep < 0:
        special = special._replace(sep=len(tokens))
        tokens.append(ADDED)
    return Vocabulary(tokenizer, tuple(tokens), special, content)


def _parse_tokenizer(content: bytes, name: str) -> Tokenizer:
    try:
        if name.endswith(".json"):
            tokenizer = Tokenizer.from_str(content.decode())
            tokenizer.encode_special_tokens = True
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer
        lines = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
        entries = {entry: i for i, entry in enumerate(lines)}
        return wrap_as_bert(models.WordPiece(entries, unk_token="[UNK]"))
    except Exception as error:
        expected = "a tokenizer.json of the tokenizers library, or a vocab.txt with an entry a line"
        raise UserError(f"{name}: expected {expected} ({in_one_line(error)})") from error


def train_vocabulary(texts: Callable[[], Iterable[str]], size: int) -> tuple[str, ...]:
    """Train WordPiece of at most `size` tokens; return them in the order of their ids.

    The same texts give the same tokens. Merges of equal frequency are made in the order of the ids
    of their parts, and the library numbers characters within words in the order of a randomly
    seeded hash map. So characters are numbered first, as if they were special tokens.

    `texts` is called twice, and each time yields all texts.
    """
    tokenizer = wrap_as_bert(models.WordPiece(unk_token="[UNK]"))
    alphabet = _alphabet(tokenizer, texts())

    def is_within_words(letter: str) -> bool:
        """Return whether words can contain a character; a Chinese one is a word of its own."""
        between = tokenizer.normalizer.normalize_str(f"a{letter}a")
        return len(tokenizer.pre_tokenizer.pre_tokenize_str(between)) == 1

    within_words = [f"##{letter}" for letter in filter(is_within_words, alphabet)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *within_words],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    entries = tokenizer.get_vocab()
    return tuple(sorted(entries, key=entries.__getitem__))


def _alphabet(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the most frequent normalised characters, at most `ALPHABET`, by code point."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    seen: Counter[str] = Counter()
    for character, count in raw.items():
        for letter in tokenizer.normalizer.normalize_str(character):
            if tokenizer.pre_tokenizer.pre_tokenize_str(letter):  # no white space
                seen[letter] += count
    return sorted(sorted(seen, key=lambda letter: (-seen[letter], letter))[:ALPHABET])


def train_bpe(texts: Iterable[str], size: int) -> bytes:
    """Train a byte-level BPE of at most `size` entries, GPT-2's kind; return a `tokenizer.json`.

    It encodes any text without a loss. The first entry ends documents, then come the 256 bytes in
    the order of their characters, so ids do not depend on the text, and merges of equal frequency
    are made in the order of the ids of their parts: the same texts give the same file.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def vocabulary_file(tokens: Iterable[str]) -> bytes:
    """Return the content of a `vocab.txt`: an entry a line, in the order of ids."""
    return "".join(f"{token}\n" for token in tokens).encode()
