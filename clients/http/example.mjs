// Publishes some orders, and prints them when a worker has put them into the file: node example.mjs http://127.0.0.1:9096
import { Fencepost } from "./fencepost.mjs";

const fencepost = new Fencepost(process.argv[2] ?? "http://127.0.0.1:9096", { token: process.env.FENCEPOST_TOKEN });
const orders = [{ id: 1, item: "chair" }, { id: 2, item: "table" }, { id: 3, item: "lamp" }];
for (const order of orders) {
  // The key is the order's: running this again, within the worker's window, brings nothing into the file a second time.
  await fencepost.publish("node-orders", JSON.stringify(order), { key: `order-${order.id}`, headers: { source: "example" } });
}
let seen = 0;
for await (const message of fencepost.tail("node-orders")) {
  console.log(message.index, message.payload);
  if (++seen === orders.length) break;
}
