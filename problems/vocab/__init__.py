"""Vocabularies convert text to token ids and back.

Every token stands for fixed bytes (`vocabulary.py`), so the tokens of a text give its length in
bytes. Kinds: SentencePiece sub-words with byte fallback (`subwords.py`), characters or bytes
(`characters.py`), and the `tokenizer.json` of a Hugging Face model (`tokenizer.py`). The last kind
may change a text. `vocabulary_file.py` stores a vocabulary in the directory of a problem's data.
"""
