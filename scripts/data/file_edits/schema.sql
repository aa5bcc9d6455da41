CREATE TABLE authors (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    born INTEGER
);

CREATE TABLE books (
    id INTEGER PRIMARY KEY,
    author_id INTEGER NOT NULL REFERENCES authors (id),
    title TEXT NOT NULL,
    published INTEGER,
    pages INTEGER CHECK (pages > 0)
);

CREATE INDEX books_by_author ON books (author_id);
CREATE INDEX books_by_year ON books (published);

CREATE VIEW long_books AS
SELECT books.title, authors.name, books.pages
FROM books
JOIN authors ON authors.id = books.author_id
WHERE books.pages > 500
ORDER BY books.pages DESC;
