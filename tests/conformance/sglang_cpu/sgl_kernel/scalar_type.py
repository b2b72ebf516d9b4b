"""Empty: SGLang does without the number formats of its kernels where they cannot be imported."""
