"""A policy engine for CPU: SGLang's native HTTP API over a transformers causal LM.

    http (app.py) -> one engine thread (thread.py) -> scheduler.py -> model.py
                                                       |- sequences.py  requests and their answers
                                                       |- slots.py      KV cache, one row a request
                                                       `- sampling.py   logits to tokens

Needs torch and transformers. Imported by the command line (`mainspring serve`) alone.
"""
