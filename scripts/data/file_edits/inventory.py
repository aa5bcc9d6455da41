"""Count the items of a small shop."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: float
    quantity: int = 0


@dataclass
class Inventory:
    items: dict[str, Item] = field(default_factory=dict)

    def add(self, name: str, price: float, quantity: int = 1) -> None:
        item = self.items.setdefault(name, Item(name, price))
        item.quantity += quantity

    def remove(self, name: str, quantity: int = 1) -> None:
        item = self.items[name]
        if item.quantity < quantity:
            raise ValueError(f"only {item.quantity} of {name} left")
        item.quantity -= quantity

    def total(self) -> float:
        return sum(item.price * item.quantity for item in self.items.values())
