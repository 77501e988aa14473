-- The tables of the honest queries in analytics.yaml, empty.
CREATE TABLE a (id int, x int, elem text);
CREATE TABLE b (id int, y int);
CREATE TABLE c (id int, z int);
CREATE TABLE articles (id int, body text, tsv tsvector);
CREATE TABLE bookings (id int, during tstzrange);
CREATE TABLE carts (id int, data jsonb);
CREATE TABLE categories (id int, parent_id int, name text);
CREATE TABLE daily_revenue (day date, revenue numeric);
CREATE TABLE devices (id int, flags int);
CREATE TABLE edges (src int, dst int);
CREATE TABLE events (user_id int, event text, at timestamptz);
CREATE TABLE facts (d date, v int);
CREATE TABLE files (id int, bytes bigint);
CREATE TABLE flags (a boolean, b boolean);
CREATE TABLE items (order_id int, product_id int, product text);
CREATE TABLE pairs (a int, b int, c int);
CREATE TABLE places (id int);
CREATE TABLE products (id int, name text, category_id int, tags text[], price int, code text, rating int);
CREATE TABLE profiles (id int, data jsonb);
CREATE TABLE ranges (r int4range);
CREATE TABLE readings (sensor int, at timestamptz, value numeric, a int, b int, c int);
CREATE TABLE rfm (product text, recency int, frequency int, monetary int);
CREATE TABLE sales (country text, city text, product text, total numeric);
CREATE TABLE staff (department text, employee text, salary int);
CREATE TABLE vectors (i int, x float8, y float8);
CREATE TABLE visits (url text, ip inet);
CREATE TABLE users (id int PRIMARY KEY, name text, email text, phone text, country text, created_at timestamptz,
    tags text[], roles text[], first_name text, last_name text, secret text);
CREATE TABLE orders (id int PRIMARY KEY, user_id int, status text, total numeric, items int, placed_at timestamptz,
    shipped_at timestamptz);
