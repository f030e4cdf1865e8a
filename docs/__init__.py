"""The manual: pages in MyST Markdown, and the code that makes the generated ones."""
