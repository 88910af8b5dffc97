"""Check that a configuration keeps the model's answers: ask a server, and compare the answers of two servers.

- `task`, `harness`: what is asked: the user's questions, or tasks of lm-evaluation-harness.
- `ask`: one server's token probabilities and answers.
- `examiner`: starts servers, asks each variant once, keeps what they answered in the database, and tells the result.
- `compare`: the comparison of a candidate with the reference.
"""
