"""Contract suites for engines and deployment formats of other packages, which those of the tuner pass, too.

A test class subclasses `tuner.testing.engine.EngineContract` or `tuner.testing.exporter.FormatContract` and says
how its program is reached. Needs pytest and hypothesis (`pip install 'llm-serving-tuner[testing]'`).
"""
