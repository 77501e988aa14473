-- The tables of the honest queries in analytics.yaml, empty.
CREATE TABLE a (id, x);
CREATE TABLE b (id, y);
CREATE TABLE c (id, z);
CREATE TABLE d (id);
CREATE TABLE t (a, b, c);
CREATE TABLE categories (id, parent_id, name);
CREATE TABLE daily (day, revenue);
CREATE TABLE items (order_id, product);
CREATE TABLE profiles (id, data);
CREATE TABLE readings (x);
CREATE TABLE stock (id, sku, qty, at);
CREATE VIRTUAL TABLE docs USING fts5 (title, body);
CREATE TABLE users (id INTEGER PRIMARY KEY, name, email, country, total, created_at, secret);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id, status, total, placed_at, a, b);
