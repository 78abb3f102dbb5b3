// Publishes some orders, and prints them after a worker has appended them to the file: node example.mjs http://127.0.0.1:9096
import { Fencepost } from "./fencepost.mjs";

const fencepost = new Fencepost(process.argv[2] ?? "http://127.0.0.1:9096", { token: process.env.FENCEPOST_TOKEN });
const orders = [{ id: 1, item: "chair" }, { id: 2, item: "table" }, { id: 3, item: "lamp" }];
for (const order of orders) {
  // Each order has its own key: if this runs again within the worker's window, nothing gets into the file a second time.
  await fencepost.publish("node-orders", JSON.stringify(order), { key: `order-${order.id}`, headers: { source: "example" } });
}
let seen = 0;
for await (const message of fencepost.tail("node-orders")) {
  console.log(message.index, message.payload);
  if (++seen === orders.length) break;
}
