"""Write reports as JSON documents, tables and plots, and read benchmark prompts."""
