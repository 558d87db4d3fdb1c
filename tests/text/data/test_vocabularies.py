"""Vocabularies as published language models have them: ids, special tokens, words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpora import error_of, write_corpus, write_vocabulary
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from jaxtie.config import UserError
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import baselines, prepare_corpus
from jaxtie.text.data.batches import Special
from jaxtie.text.data.tokens import WholeWords, frequent_words, prepare_text
from jaxtie.text.data.vocabulary import load_vocabulary

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPLIT = Regex(r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)| ?\p{L}+|\s+")
Texts = list[str]


def byte_level(texts: Texts, special: str, *after: str) -> Tokenizer:
    """Train a BPE of bytes; special tokens come first, as in GPT-2's, or after all others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special.split(), initial_alphabet=BYTES, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in after])
    return tokenizer


def llama3(texts: Texts) -> Tokenizer:
    tokenizer = byte_level(texts, "", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    split = pre_tokenizers.Split(SPLIT, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def qwen(texts: Texts) -> Tokenizer:
    tokenizer = byte_level(texts, "", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def gemma(texts: Texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator([f" {text}" for text in texts], trainer)
    return tokenizer


def t5(texts: Texts) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def of_bytes(texts: Texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


FAMILIES: dict[str, tuple[Callable[[Texts], Tokenizer], dict[str, str]]] = {
    "GPT-2": (lambda texts: byte_level(texts, "<|endoftext|>"), {"sep": "<|endoftext|>"}),
    "Llama 3": (llama3, {"cls": "<|begin_of_text|>", "sep": "<|end_of_text|>"}),
    "Qwen": (qwen, {"sep": "<|endoftext|>"}),
    "Gemma": (gemma, {"pad": "<pad>", "unk": "<unk>", "cls": "<bos>", "sep": "<eos>"}),
    "T5": (t5, {"pad": "<pad>", "unk": "<unk>", "sep": "</s>"}),
    "bytes": (of_bytes, {}),
    "RoBERTa": (
        lambda texts: byte_level(texts, "<s> <pad> </s> <unk> <mask>"),
        {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    ),
}
SMALL = {"batch": 2, "length": 16, "eval_batches": 4, "words": 8, "contexts": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus", files=12, paragraphs=5)


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_special_tokens_are_the_librarys(folder, tmp_path, cache, family):
    make, special = FAMILIES[family]
    raw = [path.read_text() for path in sorted(folder.glob("*"))]
    library, path = make(raw), tmp_path / "tokenizer.json"
    library.save(str(path))
    text = prepare_text(Corpus((str(folder),), vocab=str(path)), cache)
    ids = {name: library.token_to_id(token) for name, token in special.items()}
    tokens = [library.id_to_token(i) for i in range(library.get_vocab_size())]
    if family == "bytes":  # gets an entry that ends documents
        ids = {"sep": len(BYTES)}
        tokens.append("<end of document>")
    assert text.special == Special(*(ids.get(name, -1) for name in Special._fields))
    assert [*text.vocabulary] == tokens
    found = sorted(tuple(rows.row(r)) for rows in text[2:5] for r in range(rows.count))
    sentences = [line for each in raw for line in each.split("\n") if line]
    expected = [library.encode(each, add_special_tokens=False).ids for each in sentences]
    assert found == sorted(map(tuple, expected))
    assert sum(text.report.unknown.values()) == 0
    experiment = TextExperiment(objective="causal", duplicates=False, **SMALL)
    prepared = prepare_corpus(experiment, text)
    assert all(0 < loss < 10 for loss in baselines(experiment, prepared).values())
    words = frequent_words(text, 8)[1]
    assert {*words} & {"the", "cat", "dog", "with", "near", "my"} or family == "bytes"
    marked = [word for word in words if word[0] in "Ġ▁#"]
    assert len({*words}) == 8 and (not marked or family == "bytes")


def test_a_masked_model_needs_a_mask(folder, tmp_path, cache):
    raw = [path.read_text() for path in folder.glob("*")]
    refusals = {"GPT-2": "pad, unk, cls, mask", "RoBERTa": "", "[MASK]": "mask", "[SEP]": "sep"}
    for family, refused in refusals.items():
        path = tmp_path / f"{family}.json"
        if family[0] == "[":
            path = write_vocabulary(tmp_path / "vocab.txt", without=family)
        else:
            FAMILIES[family][0](raw).save(str(path))
        corpus = Corpus((str(folder),), vocab=str(path))
        experiment = TextExperiment(corpus=corpus, duplicates=False, buckets=(16,), **SMALL)
        text = prepare_text(corpus, cache)
        if not refused:
            assert prepare_corpus(experiment, text).vocabulary
            continue
        with pytest.raises(UserError, match=f"no special token for {refused}; expected") as caught:
            prepare_corpus(experiment, text)
        assert str(caught.value).startswith(f"--vocab {path}: ") and "\n" not in str(caught.value)


def test_special_tokens_in_the_text_are_text(folder, tmp_path, cache):
    path = tmp_path / "tokenizer.json"
    qwen([each.read_text() for each in folder.glob("*")]).save(str(path))
    vocabulary = load_vocabulary(path)
    (ids,) = vocabulary.encode(["A<|endoftext|>b<|im_end|>"])
    assert not np.isin(ids, [vocabulary.special.sep]).any()
    assert vocabulary.tokenizer.decode(ids) == "A<|endoftext|>b<|im_end|>"


def test_special_tokens_that_a_vocabulary_finds_in_the_text_are_refused(tmp_path, cache):
    """A vocabulary of words has "</s>" as a word."""
    folder = write_corpus(tmp_path / "corpus", files=12, paragraphs=5)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "the": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    corpus = Corpus((str(folder),), vocab=str(path), form="documents")
    assert prepare_text(corpus).special.sep == 1
    (folder / "more.txt").write_text("One </s> two.\n")
    assert error_of(corpus, cache).startswith("--vocab: a special token occurs in the text")


def test_tokens_of_the_text_are_no_special_ones(tmp_path):
    """As Gemma has HTML's <s> among its ordinary tokens."""
    tokenizer, path = of_bytes([]), tmp_path / "tokenizer.json"
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken("</s>", special=False), AddedToken("<pad>", special=False)])
    tokenizer.save(str(path))
    vocabulary = load_vocabulary(path)
    assert vocabulary.special == Special(-1, -1, -1, len(BYTES), -1)
    (ids,) = vocabulary.encode(["b</s><pad><eos>"])
    assert ids[1:3] == [len(BYTES) + 1, len(BYTES) + 2] and len(BYTES) not in ids


def test_whole_words_of_bytes_are_letters():
    """Indentation, line ends, quotes and dashes are no words."""
    tokenizer = byte_level(["The  dog’s —\n\tat à la “carte” ran\n"] * 9, "<|endoftext|>")
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    words = WholeWords.of(tokens)
    assert {"la", "ran", "à"} <= {*words.name_V} and not words.is_wordpiece
    assert all(word.isalpha() and not {*word} & {*"ĠĊâÃł"} for word in words.name_V if word)
    for text, goes_on in {"\n": False, "’": False, "—": False, "s": True}.items():
        (i,) = tokenizer.encode(text).ids[:1] if text in "\ns" else (0,)
        assert words.continues_V[i] == goes_on


def test_wordpiece_of_a_text_with_a_sparkline_is_wordpiece():
    words = WholeWords.of(["[PAD]", "\u2581", "\u2582", "the", "##s", "cat"])
    assert words.is_wordpiece and words.name_V[3] == "the" and words.continues_V.sum() == 1
    of_bytes = WholeWords.of(["\u0120", "\u0120the", "##", "##\u010a", "s"])
    assert not of_bytes.is_wordpiece and of_bytes.name_V[1] == "the"


def test_a_text_that_a_vocabulary_cannot_encode_is_refused_in_one_line(tmp_path, cache):
    tokenizer = Tokenizer(models.Unigram([("x", 0.0), ("a", -1.0)]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("\n\n".join(f"b{i} x" for i in range(40)))
    path = str(tmp_path / "tokenizer.json")
    corpus = Corpus((str(tmp_path / "a.txt"),), vocab=path, form="documents")
    assert "vocabulary: cannot tokenise this text" in error_of(corpus, cache)
    Tokenizer(models.BPE()).save(path)
    assert "has no entries" in error_of(corpus, cache)


def test_a_vocabulary_with_gaps_keeps_its_ids(tmp_path):
    path, tokenizer = tmp_path / "tokenizer.json", of_bytes([])
    tokenizer.save(str(path))
    text = path.read_text().replace('"!":0,', '"!":300,').replace('"!": 0,', '"!": 300,')
    path.write_text(text)
    vocabulary = load_vocabulary(path)
    assert len(vocabulary.tokens) >= 301 and vocabulary.tokens[300] == "!"
    assert vocabulary.tokens[0] == "<no token 0>" and vocabulary.encode(["!"]) == [[300]]
