"""Whether a configuration keeps the model's answers: what a server answers, and how two servers' answers compare.

- `texts`, `task`: what is asked: fixed texts, and the user's questions.
- `ask`: one server's token probabilities and answers.
- `weights`: the identity of a checkpoint.
- `examiner`: starts servers, asks each variant once, and keeps what they answered in the database.
- `tripwire`, `pairs`, `result`: the comparison of a candidate with the reference.
"""
