"""The server on Ray Serve: MODELS=/models/en-de serve run deploy.ray_serve:app"""

import os

from ray import serve

from transduct.serving.application import application


def make() -> object:
    """The ASGI application, in each replica."""
    return application(os.environ["MODELS"].split())


@serve.deployment(num_replicas=2)
@serve.ingress(make)
class Translate:
    """A replica."""


app = Translate.bind()
