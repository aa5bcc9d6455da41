package queue

import (
	"errors"
	"sync"
)

var ErrEmpty = errors.New("queue is empty")

type Queue struct {
	mutex sync.Mutex
	items []string
	limit int
}

func New(limit int) *Queue {
	return &Queue{limit: limit}
}

func (q *Queue) Push(item string) bool {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if len(q.items) >= q.limit {
		return false
	}
	q.items = append(q.items, item)
	return true
}

func (q *Queue) Pop() (string, error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if len(q.items) == 0 {
		return "", ErrEmpty
	}
	item := q.items[0]
	q.items = q.items[1:]
	return item, nil
}
