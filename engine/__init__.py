"""A policy engine for CPUs and one GPU: SGLang's native HTTP API over a transformers causal LM.

    http (app.py) -> one engine thread (thread.py) -> scheduler.py
                                                       |- sequences.py  requests and their answers
                                                       |- model/        what computes and keeps them
                                                       `- sampling.py   logits to tokens

Needs torch and transformers. Imported by the command line (`mainspring serve`) alone.
"""
