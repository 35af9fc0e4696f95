"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.secure_sum import SecureSum

GUARDS: dict[str, type[Guard]] = {
    "client_dp": ClientDP,
    "secure_sum": SecureSum,
}
