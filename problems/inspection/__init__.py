"""`t2tp_datagen --inspect`: examples, lengths, tokens and padding of prepared data."""
