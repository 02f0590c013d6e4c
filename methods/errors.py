"""What can be wrong with a method, as exceptions. No torch."""


class ContractError(Exception):
    """A method does what the contract forbids, or gives something else than it asks for."""


class NotAMethodError(Exception):
    """The user's file holds no class that the engine could run."""
