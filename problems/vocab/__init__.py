"""Vocabularies convert text to token ids and back.

Every token stands for fixed bytes (`vocabulary.py`), so the tokens of a text determine its length
in bytes. There are three kinds of vocabularies: SentencePiece sub-words with byte fallback
(`subwords.py`), characters or bytes (`characters.py`), and the `tokenizer.json` of a Hugging Face
model (`tokenizer.py`), which may change texts. `vocabulary_file.py` reads and writes the file of a
vocabulary.
"""
