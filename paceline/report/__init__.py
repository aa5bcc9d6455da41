"""What every report is made of: documents, drawings, prompts."""
