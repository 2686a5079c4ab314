"""Operations worth their own lowering: each is one mtf operation with its gradient, correct in
every layout."""
