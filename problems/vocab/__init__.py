"""Vocabularies: text to token ids and back without loss.

Every token stands for fixed bytes (`vocabulary.py`), so a text's length in bytes is known from its
tokens. Kinds: SentencePiece sub-words with byte fallback (`subwords.py`), and characters or bytes
(`characters.py`). `vocabulary_file.py` stores them in the directory of a problem's data.
"""
