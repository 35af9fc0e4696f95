"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.secure_sum import SecureSum

GUARDS: dict[str, type[Guard]] = {"secure_sum": SecureSum}
