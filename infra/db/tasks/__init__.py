"""Tasks as stored: their content, their verification, their history, and which ones a campaign
uses."""
