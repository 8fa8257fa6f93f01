"""The networks that training programs train."""
