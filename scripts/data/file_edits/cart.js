const TAX_RATE = 0.19;

export class Cart {
  constructor(currency = "EUR") {
    this.currency = currency;
    this.lines = [];
  }

  add(product, count) {
    const line = this.lines.find((entry) => entry.product.id === product.id);
    if (line) {
      line.count += count;
    } else {
      this.lines.push({ product, count });
    }
  }

  net() {
    return this.lines.reduce((sum, line) => sum + line.product.price * line.count, 0);
  }

  gross() {
    return this.net() * (1 + TAX_RATE);
  }

  format() {
    return `${this.gross().toFixed(2)} ${this.currency}`;
  }
}
