package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

// body returns the body of a message, which is also its routing key.
func body(message message.StreamMessage) string {
	return string(message.GetData()[0])
}

// send publishes bodies to a super stream, and waits until all of them are confirmed.
func send(env *stream.Environment, name string, strategy stream.RoutingStrategy, bodies []string) {
	producer, err := env.NewSuperStreamProducer(name, stream.NewSuperStreamProducerOptions(strategy))
	check(err)
	confirmed := make(chan int, len(bodies))
	go func(notified <-chan stream.PartitionPublishConfirm) {
		for statuses := range notified {
			for _, status := range statuses.ConfirmationStatus {
				if status.IsConfirmed() {
					confirmed <- 1
				}
			}
		}
	}(producer.NotifyPublishConfirmation(1))
	for _, body := range bodies {
		check(producer.Send(amqp.NewMessage([]byte(body))))
	}
	for i := range bodies {
		select {
		case <-confirmed:
		case <-time.After(limit):
			check(fmt.Errorf("only %d of %d messages are confirmed", i, len(bodies)))
		}
	}
	check(producer.Close())
}

// receive reads so many messages of a super stream, and returns the partition of each body.
func receive(env *stream.Environment, name string, count int) map[string]string {
	come := make(chan [2]string, count)
	handle := func(context stream.ConsumerContext, message *amqp.Message) {
		come <- [2]string{string(message.GetData()), context.Consumer.GetStreamName()}
	}
	options := stream.NewSuperStreamConsumerOptions().
		SetOffset(stream.OffsetSpecification{}.First())
	consumer, err := env.NewSuperStreamConsumer(name, handle, options)
	check(err)
	found := map[string]string{}
	for len(found) < count {
		select {
		case item := <-come:
			found[item[0]] = item[1]
		case <-time.After(limit):
			check(fmt.Errorf("only %d of %d messages arrived", len(found), count))
		}
	}
	check(consumer.Close())
	return found
}

// superStreams creates two super streams, by number and by keys; it deletes the second one.
func superStreams(port int, name string, count int) {
	env, err := stream.NewEnvironment(stream.NewEnvironmentOptions().
		SetHost("127.0.0.1").SetPort(port).SetUser("guest").SetPassword("guest"))
	check(err)
	check(env.DeclareSuperStream(name, stream.NewPartitionsOptions(3)))
	check(env.DeclareSuperStream(name, stream.NewPartitionsOptions(3)))
	var bodies []string
	for i := range count {
		bodies = append(bodies, "hello"+strconv.Itoa(i))
	}
	send(env, name, stream.NewHashRoutingStrategy(body), bodies)
	hashed := receive(env, name, count)

	name += "-keys"
	check(env.DeclareSuperStream(name, stream.NewBindingsOptions([]string{"emea", "apac"})))
	send(env, name, stream.NewKeyRoutingStrategy(body), []string{"apac", "emea"})
	keyed := receive(env, name, 2)
	partitions, err := env.QueryPartitions(name)
	check(err)
	unbound, err := env.QueryRoute(name, "amer")
	check(err)
	check(env.DeleteSuperStream(name))
	_, err = env.QueryPartitions(name)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"hashed": hashed, "keyed": keyed, "partitions": partitions,
		"unbound": len(unbound), "deleted": fmt.Sprint(err),
	}))
	check(env.Close())
}
