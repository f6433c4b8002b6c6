"""DeepSpeed-backed training of GPT- and BERT-style models."""
