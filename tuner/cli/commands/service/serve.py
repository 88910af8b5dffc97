"""`tuner serve`: the service."""

from __future__ import annotations

from tuner.cli.options import takes_settings
from tuner.settings.serve import ServeSettings


@takes_settings(ServeSettings)
def serve(settings: ServeSettings) -> None:
    """Serve studies to several people.

    Starts an API, a queue and a scheduler in one process. The first start prints the token of an admin, once.
    `tuner token add` makes further ones, `tuner submit` submits a study.

    tuner serve

    tuner serve --storage postgresql://tuner@db/tuner --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem
    """
    from tuner.service.serve import serve

    serve(settings)
