"""Tests that open pages in a headless Chromium."""
