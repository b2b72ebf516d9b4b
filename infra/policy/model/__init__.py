"""A model's folder and chat template: files that are complete, texts as tokens and back."""
