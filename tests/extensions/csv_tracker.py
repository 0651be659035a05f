"""A tracker that writes the metrics of every round as CSV."""

import csv

from fedrecall import Watcher


class CsvTracker(Watcher):
    def __init__(self, file: str = "tracked.csv") -> None:
        self.path = file

    def started(self, recipe, folder):
        self.file = (folder / self.path).open("a", newline="")
        self.writer = csv.writer(self.file)
        if not self.file.tell():
            self.writer.writerow(["round", "train_loss", "objective"])
        self.objective = recipe["objective"]["name"]

    def after(self, round):
        self.writer.writerow([round.number, round.line["train_loss"], self.objective])

    def finished(self, summary):
        self.writer.writerow(["end", summary["status"], ""])
        self.file.close()
