"""The file tools, core/fs.*, in a call's workspace."""
