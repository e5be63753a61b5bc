"""Jobs: many inputs, answered one after the other, kept on disk and gone on with."""
